"""How the application is put together: settings, the Serve application, the command line."""
