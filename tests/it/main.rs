//! The integration tests: the real binary, real processes, real sockets.
//!
//! A measured run takes half a minute, so each built-in scenario is run once
//! (`runs`), and the tests look at that run's directory from all sides.

mod api;
mod bad_input;
mod chart;
mod churn;
mod cluster;
mod collection;
mod command;
mod comparison;
mod consumers;
mod controllers;
mod disruptions;
mod dns;
mod faults;
mod faulty_api;
mod giving_up;
mod harness;
mod hostile;
mod http2;
mod ingress;
mod inject;
mod interruption;
mod kernel;
mod kube_client;
mod kubectl;
mod live;
mod load;
mod load_alpn;
mod load_ends;
mod load_job;
mod load_names;
mod load_options;
mod load_tls;
mod load_unanswered;
mod main_job;
mod nodes;
mod other_tools;
mod plugin;
mod pods;
mod probes;
mod proxy;
mod proxy_admin;
mod proxy_ends;
mod report_size;
mod runs;
mod sample_server;
mod soak;
mod stale_flows;
mod terminal;
mod termination;
mod tidy;
mod truth;
mod versions;
mod websocket;
