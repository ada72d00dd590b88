//! Settings in the definitions of VMs: `status` names each with its source, `plan` leaves ignored VMs alone.

use super::*;

const STATUS: &str = include_str!("../../../host/src/discover/definition/fixtures/libvirt-web.xml");

/// `web` has metadata of libvirt, `db` tags of Proxmox, `plain` nothing.
fn copies() -> Copies {
    let mut db = vm("db", 2, 600, &[0, 256]);
    db.vmm = Vmm::Proxmox;
    let vms = [vm("web", 2, 600, &[256]), db, vm("plain", 2, 600, &[256])];
    let copies = Copies::of(&host(HostSpec::new(2, 4), vms));
    let status = copies.both(&["status", "--json"]).json();
    let write = |path: String, text: &str| {
        let path = copies.dir("after").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let (web, db) = (named(&status, "web"), named(&status, "db"));
    let xml = STATUS
        .replace("'4711'", &format!("'{}'", web["pid"]))
        .replace("5b2f8c1e-7a44-4d0b-9a53-0f6f3f1c2e77", text(&web, "uuid"))
        .replace("weight=\"200\"", "weight=\"200\" wieght=\"&#27;[2J\" ignore=\"no\"");
    write("run/libvirt/qemu/web.xml".to_owned(), &xml);
    let number = &db["pid"];
    write(format!("run/qemu-server/{number}.pid"), &format!("{number}\n"));
    let tags = "name: db\ntags: a;instep-ignore;instep-weight-300\n[old]\ntags: instep-weight-1\n";
    write(format!("etc/pve/qemu-server/{number}.conf"), tags);
    copies
}

fn named(document: &Value, name: &str) -> Value {
    list(document, "vms").iter().find(|vm| vm["name"] == *name).unwrap().clone()
}

#[test]
fn status_names_each_setting_with_its_source() {
    let copies = copies();
    let file = copies.dir("instep.toml");
    fs::write(&file, "[dispatch.vm.web]\nweight = 700\nlatency = 'prompt'\n").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let status = copies.both(&[&["status", "--json"], &config[..]].concat()).json();
    let expected = json!([
        {"key": "weight", "value": "200", "source": "libvirt_metadata"},
        {"key": "cosched", "value": "relaxed", "source": "libvirt_metadata"},
        {"key": "ignore", "value": "no", "source": "libvirt_metadata"},
        {"key": "latency", "value": "prompt", "source": "configuration"},
    ]);
    assert_eq!(named(&status, "web")["settings"], expected);
    let db = named(&status, "db");
    assert_eq!(
        db["settings"][0],
        json!({"key": "weight", "value": "300", "source": "proxmox_tag"})
    );
    assert_eq!(text(&db, "left_alone"), "its Proxmox tag says that Instep is to ignore it");
    let plain = named(&status, "plain");
    assert_eq!((&plain["settings"], &plain["left_alone"]), (&json!([]), &Value::Null));
    let warned = status["warnings"].to_string();
    assert!(warned.contains("web.xml) is unknown; known are weight"), "{warned}");
    assert!(warned.contains("?[2J") && !warned.contains("u001b"), "{warned}");

    let drawn = copies.both(&[&["status"], &config[..]].concat());
    let shown = drawn.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = "settings: weight 200 (libvirt metadata), cosched relaxed (libvirt metadata), ignore no (libvirt \
                metadata), latency prompt (configuration file)";
    assert!(shown.contains(line), "{shown}");
    assert!(shown.contains("weight 300 (Proxmox tag), ignore yes (Proxmox tag)"), "{shown}");
}

#[test]
fn ignored_vm_is_not_planned_unless_only_configuration_counts() {
    let copies = copies();
    let plan = copies.both(&["plan", "--json"]).json();
    let is_placed =
        |plan: &Value, name: &str| list(plan, "vms").iter().any(|vm| vm["name"] == *name);
    assert!(is_placed(&plan, "web") && !is_placed(&plan, "db"));
    let left = list(&plan, "left_alone").iter().find(|vm| vm["name"] == "db").unwrap();
    assert!(text(left, "why").contains("Proxmox tag"), "{left}");
    let file = copies.dir("instep.toml");
    fs::write(&file, "[discover]\nvm_settings = false\n").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let plan = copies.both(&[&["plan", "--json"], &config[..]].concat()).json();
    assert!(is_placed(&plan, "db"));
    let status = copies.both(&[&["status", "--json"], &config[..]].concat()).json();
    assert_eq!(named(&status, "web")["settings"], json!([]));
}
