"""How segments become fewer: merged by the writer, or adopted from a scratch folder that another process filled."""
