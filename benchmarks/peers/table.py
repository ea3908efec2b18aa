"""Which module has which peer, in the order of the table; nothing here imports a peer."""

MODULES = {
    "estimand": "default",
    "estimand_small": "default",
    "prior": "prior",
    "numpyro_nuts": "numpyro_nuts",
    "nutpie": "pymc_samplers",
    "pymc_nuts": "pymc_samplers",
    "pymc_smc": "pymc_samplers",
    "pymc_smc_ratio": "pymc_samplers",
    "blackjax_smc": "blackjax_smc",
    "blackjax_smc_ratio": "blackjax_smc",
    "dynesty": "dynesty_nested",
    "dynesty_ratio": "dynesty_nested",
    "tfp_ais": "tfp_ais",
    "openturns_subset": "openturns_events",
    "openturns_directional": "openturns_events",
}
OURS = ("estimand", "estimand_small")
PROBLEMS = (
    "posterior_predictive",
    "banana",
    "sir",
    "radon",
    "eight_schools",
    "eight_schools_event",
    "four_branch",
)
