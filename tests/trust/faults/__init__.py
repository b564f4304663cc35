"""The faults, room by room: each module has `FAULTS`."""
