"""Work on whole tables, cut into tasks that other processes do. Which engine runs them is not known here."""
