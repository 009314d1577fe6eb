"""Of `bench/demo.py`: the comparison with the oracle. Of `bench/demo_kube.py`: what it tells, and pictures of dashboards."""
