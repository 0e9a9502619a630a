"""The same work on other model servers, each installed from the package registry into an environment of its own."""
