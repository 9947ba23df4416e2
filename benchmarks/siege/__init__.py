"""A service under hostile tenants: what each of them costs the others, case by case."""
