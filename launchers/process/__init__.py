"""Plain processes of this host: `launcher` is the `controlplane.ports.Launcher`."""
