"""The command line: one module for each verb, without logic. `main` has the list of verbs."""
