"""Environments: compiled twins (`registry.make_jax`) and any gymnasium environment on the host (`host.HostEnvs`)."""
