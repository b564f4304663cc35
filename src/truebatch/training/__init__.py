"""Batches to a model: clip, noise, optimize, checkpoint, evaluate."""
