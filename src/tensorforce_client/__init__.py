"""The old tfcli's name, so that `python -m tensorforce_client` in old scripts starts Steppe's command line."""
