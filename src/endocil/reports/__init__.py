"""From finished runs to tables, figures, pages and the ledger."""
