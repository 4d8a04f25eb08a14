"""Search plans, and the planner that chooses the cheapest plan for a recall target."""
