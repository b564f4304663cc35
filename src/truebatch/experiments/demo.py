"""The demo: the main job on real data that comes with the package, in about a minute on a laptop."""

from truebatch.records import RunConfig

# Expected: test AUC 0.70 to 0.71, on rows later than all that it was trained on; logistic regression
# without privacy, on standardized numbers, reaches 0.707.
DEMO = RunConfig(
    batch_size=4096,
    epochs=5,
    epsilon=5.0,
    delta=1e-6,
    model="linear",
    learning_rate=0.02,
)
