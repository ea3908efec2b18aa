"""The words of tables, plots and reports, in plain ones. The page of the docs has the same."""

WORDS = {
    "posterior γ": "What the model and the data say about its sites. Draws of NUTS are from it.",
    "γ·f⁺ and γ·f⁻": "The posterior times the positive or the negative part of f: large where the "
    "expectation comes from. They may lie where the posterior has next to nothing.",
    "Z1_plus, Z1_minus, Z2": "The masses of these three densities. The estimate is "
    "(Z1_plus − Z1_minus) / Z2.",
    "95 % interval": "A range that has the truth in it 19 times out of 20.",
    "relative error": "The standard error, divided by the value.",
    "ESS": "Effective sample size: how many independent draws the weighted ones are worth.",
    "Pareto k": "How heavy the tail of the weights is. Below 0.7 their average can be trusted; "
    "above, a few draws may decide, and do where one of them holds more than 0.2 % of the weight: "
    "both together refuse an estimate.",
    "largest weight": "The share of the weight that one draw holds.",
    "cancellation": "How much of E|f| is left when the negative part is subtracted from the "
    "positive one: 1 for an f of one sign, near 0 where its signs cancel.",
    "share of error": "How much of the variance of the estimate comes from this part.",
    "replicates": "Independent repetitions inside of one run; how far they are apart gives the "
    "error. Their deviation is relative to Z.",
    "plain draws": "What averaging f over draws of the posterior would have said, with as many "
    "draws as densities were evaluated here.",
    "status": "Whether the estimate can be used. Only ok can: all checks passed.",
}

# Those of answers beyond one expectation.
OF_ANSWERS = {
    "expected utility": "The average of the utility of an action over what the model and the data "
    "leave open. The best action has the largest.",
    "best less this": "How much more expected utility the best action has than this one. It has an "
    "error of its own, which is mostly smaller than those of the two utilities.",
    "probability of best": "How probable it is that no other action would have been better, had "
    "one known everything.",
    "expected regret": "How much is lost on average by taking this action and not the one that "
    "turns out to be best.",
    "perfect information": "Knowing everything that the model leaves open, before choosing. No "
    "study can be worth more.",
    "study": "What could be observed before choosing. Its data are worth the expected utility that "
    "choosing after them adds.",
}
