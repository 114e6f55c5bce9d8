"""What every node has: its process and parameters, what it hears and who publishes that, diagnostics, the log."""
