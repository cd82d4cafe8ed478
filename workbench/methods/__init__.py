"""Methods: drafters, acceptance rules, policies, and the catalogue that combines them."""
