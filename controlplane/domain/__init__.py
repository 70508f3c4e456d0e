"""The domain's values: frozen dataclasses without effects, whose limits are annotations."""
