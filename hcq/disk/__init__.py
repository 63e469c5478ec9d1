"""Files below the user's folders: compiled objects by content, crash bundles, private folders."""
