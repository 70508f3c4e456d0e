"""The command line, without logic. `verbs` has the list of verbs and their modules."""
