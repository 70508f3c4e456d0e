"""One endpoint for the fleet: slots (pure), HAProxy and the facade (effects)."""
