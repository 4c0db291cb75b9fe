//! What counts as dropped, and how sure a recommendation must be.

use crate::record::retry::GRPC_UNAVAILABLE;
use crate::record::{Outcome, RequestRow};

/// The judgement that recording leaves open.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Statuses by which a proxy in between says that it reached no pod.
    pub gateway_statuses: Vec<u16>,
    /// The share of future terminations that a recommendation must cover.
    pub coverage: f64,
    /// At this confidence.
    pub confidence: f64,
    /// Seconds added to a recommended sleep and grace period.
    pub margin_s: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { gateway_statuses: vec![502, 503, 504], coverage: 0.90, confidence: 0.95, margin_s: 1 }
    }
}

/// What became of a request, as its user sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Answered with success.
    Ok,
    /// Lost because of infrastructure.
    Dropped,
    /// The app's own error.
    AppError,
    /// Not sent by our own fault.
    NotSent,
    /// Cut off by the end of the run.
    Cancelled,
}

impl Policy {
    /// Judges one row.
    pub fn class(&self, row: &RequestRow) -> Class {
        self.class_of(row.outcome, row.status, row.grpc_status)
    }

    /// Judges what bears on it of a row.
    pub fn class_of(&self, outcome: Outcome, status: Option<u16>, grpc_status: Option<i32>) -> Class {
        let unavailable = grpc_status == Some(GRPC_UNAVAILABLE);
        match outcome {
            Outcome::Ok if unavailable => Class::Dropped,
            Outcome::Ok => Class::Ok,
            Outcome::HttpError if unavailable || self.is_gateway(status) => Class::Dropped,
            Outcome::HttpError => Class::AppError,
            Outcome::NotSent => Class::NotSent,
            Outcome::Cancelled => Class::Cancelled,
            _ => Class::Dropped,
        }
    }

    fn is_gateway(&self, status: Option<u16>) -> bool {
        status.is_some_and(|s| self.gateway_statuses.contains(&s))
    }
}
