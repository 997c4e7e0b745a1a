"""Reports to people and their tools. What is here changes no job: if it fails, jobs go on."""
