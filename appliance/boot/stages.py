"""The stages of a boot, each told, timed and recorded. `sequence.prepare` has their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from appliance import __version__, isolated
from appliance.attestation.collect import collect
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.collect.release import ReleaseAttestor
from appliance.boot import auditing, checks, identity
from appliance.boot.placement.bind import bind
from appliance.boot.placement.staple import stapled
from appliance.boot.planning import budget, footprint
from appliance.boot.planning.footprint import Share
from appliance.boot.running import declared, load
from appliance.boot.running.interval import interval_of
from appliance.boot.selftest import run
from appliance.boot.under_way import UnderWay
from appliance.keys import policy_keys
from appliance.models.catalogue import Catalogue
from appliance.sandbox import box
from appliance.sandbox.hardening import harden, refuse_new_code, traced
from appliance.signed import approvals, successor
from appliance.signed.tenants import tenants_of
from appliance.state import sealed_key
from appliance.state.audit_sink import open_disk
from appliance.state.sessions import open_sessions


def policy(way: UnderWay) -> None:
    """Stop the boot where this version or this machine cannot keep the policy, or another one was
    launched."""
    with way.steps.step("policy") as note:
        loaded, policy, folders = way.loaded, way.policy, list(way.folders)
        way.catalogue = Catalogue(checks.find_models(policy, folders))
        checks.check(loaded, way.operator, way.catalogue)
        budget.allow_files(policy.limits)
        budget.allow_time()
        way.tenants = tenants_of(policy, folders)
        identity.name_things(way.audit, policy, way.tenants.tenants)
        way.provider = collect.provider(policy.tee.platforms, loaded.host_data, way.places)  # its devices stay open
        bound = bind(loaded, way.provider, root=way.places.root)
        way.provider = stapled(way.provider, way.places.collateral)
        way.audit.write("boot.start", version=__version__, platform=way.provider.platform,
                        policy_sha384=loaded.digest.hex())
        approved = approvals.require(policy, loaded.digest, approvals.beside(loaded.path).name, folders)
        auditing.write_configuration(way.audit, policy, way.operator, len(way.tenants.tenants),
                                     list_version=way.tenants.version, approvers=approved.valid)
        way.successor = successor.registers_of(policy, folders)
        # Hardening takes away the right to start a process, and to connect.
        way.fetcher.start(policy_keys.key_files(way.catalogue.paths))
        way.fetcher.reach(way.provider.platform, tolerant=way.tolerant)
        note.detail = ", ".join((loaded.digest.hex(), bound, *(f"approved by {name}" for name in approved.valid)))


def hardening(way: UnderWay) -> None:
    """Give up what the process does not need, and enter the sandbox."""
    with way.steps.step("hardening") as note:
        way.table = load.native_code()
        measures = harden(tolerant=way.tolerant)
        way.box = box.enter(
            way.loaded, prebuilt=way.prebuilt, tolerant=way.tolerant, models=[
                *way.catalogue.files(), *policy_keys.bundles(way.policy.models, way.catalogue.paths)],
            port=way.operator.listen_port, child=way.fetcher.pid, traced=traced(measures))
        way.box.measures[:0] = [
            *measures, refuse_new_code(prebuilt=way.prebuilt, tolerant=way.tolerant)]
        note.tolerate(measure.name for measure in way.box.measures if measure.outcome != "done")
        for words in way.fetcher.reached():  # before the self-test, which takes minutes on some machines
            way.steps.say(f"{words}; it is asked again after the self-test")


def self_test(way: UnderWay) -> None:
    """Known answers for cryptography, random source and kernels."""
    with way.steps.step("self-test") as note, run.report_crashes():
        if not way.prebuilt:
            way.steps.say(f"kernels are {way.table.source}")
            # Kernels that are compiled on first use are tested as far as the models need them; a
            # library, wholly.
            way.formats = load.formats_named_by(map(way.catalogue.of, way.policy.models))
        way.tested = run.run(way.table, formats=way.formats, need_cpu_random=not way.tolerant,
                             progress=way.steps.counter("answers"))
        note.detail = f"{run.require(way.tested)}; kernels: {way.table.source}"


def key_release(way: UnderWay) -> None:
    """Keys of sealed models, from where the policy says."""
    with way.steps.step("key-release") as note:
        way.build = identity.build(way.table)
        asker = ReleaseAttestor(way.provider, way.loaded.digest, way.tested.digest, way.build)
        sealed = sealed_key.read(way.policy)
        released = way.fetcher.keys(asker, tolerant=way.tolerant, own=sealed_key.own_key(sealed, way.successor))
        way.sealed = sealed and replace(sealed, fresh=way.fetcher.resealed)
        way.keys = policy_keys.release(way.policy.models, released)
        way.state_key = policy_keys.state_key(way.policy, released)
        isolated.forget()
        auditing.write_keys(way.audit, way.policy)
        told = f"state{way.sealed.remark if way.sealed else ''}"
        note.tell(", ".join([*way.keys, *([told] if way.state_key else [])]), "nothing is sealed")
        way.box.tighten("load")


def state(way: UnderWay) -> None:
    """The sealed disk opens, and the audit log moves there if the policy says so."""
    with way.steps.step("state") as note:
        way.disk = disk = open_disk(way.policy, way.state_key, way.sink, way.audit, way.sealed)
        if disk is not None and way.tenants.version is not None:
            disk.snapshot.advance_list(way.tenants.version)
        note.tell(f"epoch {disk.epoch}, disk {disk.disk.hex()}" if disk else "", "nothing is written")


def models(way: UnderWay) -> None:
    """Models are read, checked against their pins, and loaded."""
    with way.steps.step("models") as note:
        policy, running = way.policy, way.running
        way.division = budget.fitting(policy, way.catalogue, compiles=not way.prebuilt)
        kept = declared.copies(policy, way.keys)
        way.declared = declared.ModelLoader(policy, way.catalogue, way.table, way.formats, way.division, kept)
        for model in load.drafts_first(policy.at_boot):
            running[model.name] = load.load(model, way.catalogue.of(model), load.Loading(
                policy.limits, way.steps.counter("bytes"), tested=way.formats, key=way.keys.get(model.name),
                kernels=way.table, draft=running.get(model.draft_model or ""), share=way.division.shares[model.name],
                plaintext_budget=load.plaintext_left(policy, running), users=load.users(policy, model),
                interval=interval_of(policy), sweeps=policy.privacy.memory_access == "oblivious"))
            way.audit.write("boot.model", model=model.name, sha256=running[model.name].source.sha256.hex())
        way.sessions = open_sessions(policy, way.disk, running, partial(auditing.write_failed_sessions, way.audit))
        if way.sessions is not None:
            auditing.write_sessions(way.audit, len(way.sessions.models))
        described = load.description(running, way.division.reasons, tolerant=way.tolerant)
        note.detail = "; ".join(filter(None, [described, *_lacks(way, way.division.shares),
                                              "" if way.sessions is None else way.sessions.word]))


def _lacks(way: UnderWay, shares: Mapping[str, Share]) -> Iterator[str]:
    """Say of which models no text is kept, though the policy asks for it."""
    for model in way.policy.at_boot:
        kept = footprint.read(model, way.policy, way.catalogue).snapshots(
            shares[model.name], footprint.askers(model, way.tenants.tenants))
        if kept is not None and kept.lack is not None:
            yield f"{model.name}: {kept.lack}"


def attestation(way: UnderWay) -> None:
    """Policy, models and self-test are bound to what the platform signs."""
    with way.steps.step("attestation") as note:
        chain = way.audit.chain
        way.attestor = Attestor(way.provider, BoundFacts(
            way.loaded.digest, way.tested.digest, way.build,
            audit_key_ed25519=None if chain is None else chain.key.public))
        way.generation = way.attestor.new_generation(model.bound() for model in way.running.values())
        note.detail = f"{collect.described(way.provider.platform)}, generation {way.generation}"
