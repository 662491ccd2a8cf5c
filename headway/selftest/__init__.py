"""Self-test of elastic training on the devices of this machine: real ranks grow, shrink, are killed and restart."""
