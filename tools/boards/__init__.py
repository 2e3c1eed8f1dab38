"""The boards for Grafana, as tables of panels from which `make docs` writes the files in deploy/grafana/boards."""
