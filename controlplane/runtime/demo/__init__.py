"""The demo: profile, plan, apply, load, and the repair of a fault, on this host. Start reading at `demo`."""
