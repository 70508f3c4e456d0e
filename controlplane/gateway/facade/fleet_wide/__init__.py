"""Fleet-wide calls: shared memory, trace and log settings. Each reaches every server or none."""
