"""The custom resource: models, names, reasons and the CRD made from them."""
