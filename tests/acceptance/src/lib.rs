//! What the end-to-end tests and the experiments share: running a scenario and reading its reports.
