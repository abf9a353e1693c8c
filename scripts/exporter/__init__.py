"""The parts of export_model.py: finds a model, exports it with its loss, checks the result and writes it."""
