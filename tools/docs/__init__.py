"""The site of documents: builds it, generates the pages of reference, and checks what was built."""
