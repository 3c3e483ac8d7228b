"""One model of time: of this machine (``profile``), of rounds (``rounds``), of sizes (``scaling``)."""
