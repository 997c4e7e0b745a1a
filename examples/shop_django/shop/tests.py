"""The tests of the shop, as a project writes them: a job is rolled back with the test that has enqueued it."""

from __future__ import annotations

from django.db import transaction
from django.test import TestCase

import outlive
from outlive.django.models import Job
from shop.models import Order
from shop.tasks import app, confirm, label, weigh


class OrderTests(TestCase):
    def test_an_order_enqueues_its_confirmation(self) -> None:
        answer = self.client.post("/orders", {"email": "ada@example.org"}).json()
        assert confirm.get_result(answer["job"]).args == [answer["order"]]

    def test_an_order_that_rolls_back_leaves_no_job(self) -> None:
        with transaction.atomic():
            confirm.enqueue(Order.objects.create(email="ada@example.org").pk)
            assert Job.objects.get().task == "shop.tasks.confirm"
            transaction.set_rollback(True)
        assert not Job.objects.exists()

    def test_a_parcel_gets_its_label_after_the_order_was_weighed_and_confirmed(self) -> None:
        with transaction.atomic():
            order = Order.objects.create(email="ada@example.org")
            confirmed = app.get_job(confirm.enqueue(order.pk).id)
            weight = weigh.using(dedupe_key=f"order-{order.pk}").enqueue(order.pk)
            parcel = label.using(after=confirmed).enqueue(outlive.result_of(weight), order.pk)
        assert (weight.status(), parcel.status()) == ("pending", "blocked")
