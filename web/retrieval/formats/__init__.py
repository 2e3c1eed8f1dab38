"""The process that reads the text of one document, with a module for each format."""
