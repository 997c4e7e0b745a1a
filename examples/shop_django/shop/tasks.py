"""The tasks of the shop. Each runs in a process of its own, after the transaction that has enqueued it."""

from __future__ import annotations

import outlive.django
from shop.models import Order

try:
    from django.tasks import TaskContext, task
except ImportError:  # Django 5.2
    from django_tasks import TaskContext, task


@task(queue_name="mail", takes_context=True)
@outlive.django.options(timeout="30s", memory="256MB")
def confirm(context: TaskContext, number: int) -> dict[str, int]:
    """Confirm an order. The order is there: it was committed with this job."""
    order = Order.objects.get(pk=number)
    order.confirmed_by = context.task_result.id
    order.save()
    return {"order": number, "attempt": context.attempt}


app = outlive.django.app()


@app.task(timeout="1m")
def weigh(number: int) -> int:
    """The weight of an order in grams."""
    return 40 * len(Order.objects.get(pk=number).email)


@app.task
def label(grams: int, number: int) -> str:
    """What is printed on the parcel."""
    return f"order {number}, {grams} g"
