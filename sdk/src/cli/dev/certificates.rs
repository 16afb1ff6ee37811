//! The development certificate authority and the broker's certificate. Scope: per `felix dev`.
//! Owns: the files under `tls/`.
//! Invariants: the authority is kept over restarts, so clients go on trusting; the leaf is made anew at each start and
//! after two thirds of its life, cannot sign others, and is good for localhost, 127.0.0.1 and ::1; keys are 0600.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use super::folder::Folder;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::private_file;

const AUTHORITY_NAME: &str = "Felix development authority";
const LEAF_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const DAY: Duration = Duration::from_secs(86_400);
const AUTHORITY_DAYS: u32 = 3_650;
const LEAF_DAYS: u32 = 90;
/// Clocks of clients may be behind ours.
const BACKDATED_DAYS: u32 = 1;

/// Where the files are.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// What clients have to trust.
    pub ca_file: PathBuf,
    pub leaf_file: PathBuf,
    pub leaf_key_file: PathBuf,
    ca_key_file: PathBuf,
}

impl Certificates {
    /// Makes the authority unless it is there, and a new leaf.
    ///
    /// # Errors
    /// `Other`: files that cannot be read or written, or an authority that is broken.
    pub fn prepare(folder: &Folder) -> Outcome<Certificates> {
        let files = Certificates {
            ca_file: folder.tls_file("ca.pem"),
            ca_key_file: folder.tls_file("ca-key.pem"),
            leaf_file: folder.tls_file("broker.pem"),
            leaf_key_file: folder.tls_file("broker-key.pem"),
        };
        if !(files.ca_file.exists() && files.ca_key_file.exists()) {
            let key = KeyPair::generate().map_err(failed)?;
            let certificate = authority_params()?.self_signed(&key).map_err(failed)?;
            // The certificate last: with it, the authority is complete.
            write(&files.ca_key_file, &key.serialize_pem())?;
            write(&files.ca_file, &certificate.pem())?;
        }
        files.renew_leaf()?;
        Ok(files)
    }

    /// Makes a new leaf; the broker reads it by itself.
    ///
    /// # Errors
    /// As [`Certificates::prepare`].
    pub fn renew_leaf(&self) -> Outcome {
        let pem = std::fs::read_to_string(&self.ca_key_file)
            .map_err(|error| Failure::other(format!("{}: {error}", self.ca_key_file.display())))?;
        let key = KeyPair::from_pem(&pem).map_err(|error| {
            Failure::other(format!(
                "{} is no key ({error}): remove the folder it is in to get a new authority",
                self.ca_key_file.display()
            ))
        })?;
        let issuer = Issuer::new(authority_params()?, key);
        let leaf_key = KeyPair::generate().map_err(failed)?;
        let leaf = leaf_params()?.signed_by(&leaf_key, &issuer).map_err(failed)?;
        // The broker takes a pair that does not fit for one that is being replaced, and looks again.
        write(&self.leaf_key_file, &leaf_key.serialize_pem())?;
        write(&self.leaf_file, &leaf.pem())
    }

    /// How long a leaf is used.
    pub fn renew_after() -> Duration {
        DAY * LEAF_DAYS / 3 * 2
    }
}

fn authority_params() -> Outcome<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new()).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_for(&mut params, AUTHORITY_DAYS);
    Ok(params)
}

fn leaf_params() -> Outcome<CertificateParams> {
    let mut params = CertificateParams::new(LEAF_NAMES.map(str::to_owned).to_vec()).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, "Felix development broker");
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    valid_for(&mut params, LEAF_DAYS);
    Ok(params)
}

fn valid_for(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let date = |since: Duration| {
        let (year, month, day) = civil_date(since.as_secs() / DAY.as_secs());
        date_time_ymd(year, month, day)
    };
    params.not_before = date(now.saturating_sub(DAY * BACKDATED_DAYS));
    params.not_after = date(now + DAY * days);
}

/// Year, month and day of a day number since 1970-01-01, in the Gregorian calendar. Years are counted from March, so
/// that the leap day is a year's last.
fn civil_date(days: u64) -> (i32, u8, u8) {
    const DAYS_TO_MARCH_0000: u64 = 719_468;
    const DAYS_OF_400_YEARS: u64 = 146_097;
    let days = days + DAYS_TO_MARCH_0000;
    let (era, day_of_era) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let small = |number: u64| u8::try_from(number).unwrap_or(1);
    (i32::try_from(year).unwrap_or(9_999), small(month), small(day))
}

fn write(path: &std::path::Path, pem: &str) -> Outcome {
    private_file::write(path, pem.as_bytes())
        .map_err(|error| Failure::other(format!("{}: {error}", path.display())))
}

fn failed(error: rcgen::Error) -> Failure {
    Failure::other(format!("cannot make a certificate: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

    use super::*;

    #[test]
    fn days_become_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (20_787, (2026, 11, 30)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil_date(days), date);
        }
    }

    #[test]
    fn a_leaf_of_a_later_start_is_trusted_by_the_first_authority_and_can_sign_nothing() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder::open(temporary.path()).unwrap();
        let first = Certificates::prepare(&folder).unwrap();
        let authority = std::fs::read(&first.ca_file).unwrap();
        let leaf = std::fs::read(&first.leaf_file).unwrap();
        let second = Certificates::prepare(&folder).unwrap();
        assert_eq!(std::fs::read(&second.ca_file).unwrap(), authority);
        assert_ne!(std::fs::read(&second.leaf_file).unwrap(), leaf);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let verify = |name: &'static str| {
            let leaf = CertificateDer::from_pem_file(&second.leaf_file).unwrap();
            let name = ServerName::try_from(name).unwrap();
            verifier.verify_server_cert(&leaf, &[], &name, &[], UnixTime::now())
        };
        for name in LEAF_NAMES {
            assert!(verify(name).is_ok(), "{name}");
        }
        assert!(verify("example.org").is_err());
    }

    #[test]
    fn a_broken_authority_is_told_with_what_to_do() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder::open(temporary.path()).unwrap();
        let files = Certificates::prepare(&folder).unwrap();
        std::fs::write(&files.ca_key_file, "nonsense").unwrap();
        assert!(Certificates::prepare(&folder).unwrap_err().message.contains("remove"));
    }
}
