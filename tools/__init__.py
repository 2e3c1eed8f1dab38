"""Programs for the developers of this repository; not part of the installed package."""
