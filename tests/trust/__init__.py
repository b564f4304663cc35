"""The guarantee, broken on purpose in every way we know of, and the checks that notice: `make trust`."""
