"""The Ray Serve deployments: ingress, router (control plane), engine."""
