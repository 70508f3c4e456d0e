"""The domain's values: frozen dataclasses without effects, from the standard library only."""
