"""What people read of a record: diagnosis, tables, report."""
