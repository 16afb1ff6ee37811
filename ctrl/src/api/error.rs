//! Refusals of the API (control-plane-api 1.2): what each error of the inner modules is called outside.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::catalog::CatalogError;
use crate::ledger::WriteError;
use crate::registry::RegistryError;
use crate::store::StoreError;
use crate::tokens::SigningError;

/// A refusal. `request::finish` makes the body of it, since only that knows the request id.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    /// The store failed with this: logged and remembered where the answer is made, never sent.
    pub store_failure: Option<std::sync::Arc<StoreError>>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, code, message: message.into(), store_failure: None }
    }

    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "validation_error", message)
    }

    /// One answer for every token that is missing or not valid.
    pub fn unauthorized() -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "a valid token is needed")
    }

    pub fn forbidden() -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "forbidden", "the token does not grant this")
    }

    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub fn not_enabled(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_enabled", message)
    }

    pub fn conflict(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, "conflict", message)
    }

    pub fn already_initialized() -> ApiError {
        let message = "the tenant was bootstrapped before";
        ApiError::new(StatusCode::CONFLICT, "already_initialized", message)
    }

    /// The body is larger than the bound.
    pub fn too_large() -> ApiError {
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "validation_error", "the body is too large")
    }

    /// The request took too long; what it asked for may have happened.
    pub fn timed_out() -> ApiError {
        let message = "no answer in time; a write may have happened";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    pub fn not_ready(message: &'static str) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    pub fn internal() -> ApiError {
        let message = "the request failed inside; the log says why";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// The refusal that belongs to a status which the HTTP layer chose by itself.
    pub fn of_status(status: StatusCode) -> ApiError {
        match status {
            StatusCode::NOT_FOUND => ApiError::not_found("there is no such route"),
            StatusCode::METHOD_NOT_ALLOWED => {
                ApiError::new(status, "validation_error", "the route does not take this method")
            }
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large(),
            status if status.is_client_error() => {
                ApiError::new(status, "validation_error", "the path or the query is not valid")
            }
            status => ApiError { status, ..ApiError::internal() },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(e: StoreError) -> ApiError {
        ApiError { store_failure: Some(std::sync::Arc::new(e)), ..ApiError::internal() }
    }
}

impl From<WriteError> for ApiError {
    fn from(e: WriteError) -> ApiError {
        match e {
            WriteError::Busy => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "busy", WriteError::Busy.to_string())
            }
            WriteError::Store(e) => e.into(),
        }
    }
}

impl From<CatalogError> for ApiError {
    fn from(e: CatalogError) -> ApiError {
        match e {
            CatalogError::Write(e) => e.into(),
            CatalogError::Name(_) | CatalogError::Invalid(_) => ApiError::invalid(e.to_string()),
            CatalogError::NotFound(_) => ApiError::not_found(e.to_string()),
            CatalogError::Exists(_) | CatalogError::Differs(_) => ApiError::conflict(e.to_string()),
        }
    }
}

impl From<RegistryError> for ApiError {
    fn from(e: RegistryError) -> ApiError {
        match e {
            RegistryError::Write(e) => e.into(),
            RegistryError::Name(_) | RegistryError::Invalid(_) => ApiError::invalid(e.to_string()),
            RegistryError::NotFound => ApiError::not_found(e.to_string()),
            RegistryError::Conflict(_) => ApiError::conflict(e.to_string()),
        }
    }
}

impl From<SigningError> for ApiError {
    fn from(error: SigningError) -> ApiError {
        tracing::error!(%error, "a token or key could not be made");
        ApiError::internal()
    }
}
