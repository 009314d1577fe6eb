"""The figures of each paper, as rows of one table: what is asked, what the paper found, and how it is measured here."""
