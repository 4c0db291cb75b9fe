//! Reads a Kubernetes API server's answers for clients: [`guard`] checks that they fit the requests, [`Listed`] reads
//! lists, [`pods`] has pods with only the fields that are used, and [`warnings`] collects the server's warnings.
//!
//! A cluster may have tens of thousands of objects, and all of their text passes through here. This crate has its own
//! optimisations for that (`[profile.release]`): the code that reads pods is not generic, so that it is compiled in
//! this crate.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Event, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::{DynamicObject, ObjectList};
use serde::de::DeserializeOwned;

pub mod guard;
pub mod pods;
pub mod warnings;

/// An object that is read from lists.
pub trait Listed: Clone + DeserializeOwned {
    /// Reads a page of a list.
    ///
    /// # Errors
    /// Fails if the text is not a list of such objects.
    fn page(text: &str) -> serde_json::Result<ObjectList<Self>> {
        serde_json::from_str(text)
    }
}

macro_rules! listed {
    ($($kind:ty),*) => { $(impl Listed for $kind {})* };
}

listed!(
    DaemonSet,
    Deployment,
    DynamicObject,
    EndpointSlice,
    Event,
    Ingress,
    Node,
    Pod,
    PodDisruptionBudget,
    ReplicaSet,
    Service,
    StatefulSet
);
