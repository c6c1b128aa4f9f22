"""From a CVXPY problem to a cone program: compile, evaluate for a batch, measure residuals, save and load."""
