"""Jobs that touch no fleet: plan, profile, simulate, train, validate, doctor. One file each."""
