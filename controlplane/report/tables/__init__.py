"""Tables, one module for each."""
