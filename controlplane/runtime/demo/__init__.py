"""The demo: profile, plan, apply, load, a fault and its repair on this host. Start reading at `demo`."""
